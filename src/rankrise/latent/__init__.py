"""How many dimensions a code needs: linear sub-networks that fill it one direction after another, and what that shows.

Small initial weights and depth make gradient descent greedy: strong directions are learned first, and a rank is read
where learning rests before it turns to the noise.
"""

from rankrise.latent._estimator import LatentRank as LatentRank
from rankrise.latent._linear_flow import LinearFlow as LinearFlow
from rankrise.latent._linear_flow import linear_autoencoder_flow as linear_autoencoder_flow
from rankrise.latent._rank_path import LatentPath as LatentPath
from rankrise.latent._rank_path import LatentVerdict as LatentVerdict
from rankrise.latent._rates import balanced_learning_rate as balanced_learning_rate
from rankrise.latent._rates import escape_time as escape_time
from rankrise.latent._subnetwork import LinearSubnetwork as LinearSubnetwork
