"""The paper's laboratory: everything that reproduces "Transformers learn through gradual rank increase".

The laboratory uses the library around it and is used by nothing but the command `rankrise`. Its rooms, from the bottom:
`models` and `data` are the networks and data sets of the paper, `training` is the loop with exact resume,
`experiments` are the runs by name, `claims` judge the tables of finished runs, `figures` draw the paper's figures of
them, and `report` puts both on a page.
"""
