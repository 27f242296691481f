"""LoRA from a change: which ranks it needs, the PEFT adapter that carries it, and the checks of that adapter."""

from rankrise.checkpoints.lora._advice import Advice as Advice
from rankrise.checkpoints.lora._advice import CurvePoint as CurvePoint
from rankrise.checkpoints.lora._advice import ModuleAdvice as ModuleAdvice
from rankrise.checkpoints.lora._advice import ModuleSpectrum as ModuleSpectrum
from rankrise.checkpoints.lora._advice import advise as advise
from rankrise.checkpoints.lora._advice import advise_run as advise_run
from rankrise.checkpoints.lora._allocation import Allocation as Allocation
from rankrise.checkpoints.lora._allocation import allocate_ranks as allocate_ranks
from rankrise.checkpoints.lora._extract import Extraction as Extraction
from rankrise.checkpoints.lora._extract import extract_lora as extract_lora
from rankrise.checkpoints.lora._models import load_model as load_model
from rankrise.checkpoints.lora._not_carried import NotCarried as NotCarried
from rankrise.checkpoints.lora._peft_writer import Adapter as Adapter
from rankrise.checkpoints.lora._peft_writer import AdapterModule as AdapterModule
from rankrise.checkpoints.lora._peft_writer import lora_arguments as lora_arguments
from rankrise.checkpoints.lora._peft_writer import peft_target as peft_target
from rankrise.checkpoints.lora._peft_writer import write_adapter as write_adapter
from rankrise.checkpoints.lora._resize import resize_lora as resize_lora
from rankrise.checkpoints.lora._verify import LogitsCheck as LogitsCheck
