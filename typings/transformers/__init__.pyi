"""What Gavel uses of transformers: its own `__init__` makes Pyright bind some 600 models, half of all its time."""

from transformers.cache_utils import DynamicCache as DynamicCache
from transformers.configuration_utils import PreTrainedConfig as PreTrainedConfig
from transformers.generation.configuration_utils import GenerationConfig as GenerationConfig
from transformers.generation.utils import GenerationMixin as GenerationMixin
from transformers.masking_utils import AttentionMaskInterface as AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface as AttentionInterface
from transformers.modeling_utils import PreTrainedModel as PreTrainedModel
from transformers.models.auto.configuration_auto import AutoConfig as AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM as AutoModelForCausalLM
from transformers.models.auto.modeling_auto import AutoModelForImageTextToText as AutoModelForImageTextToText
from transformers.models.auto.tokenization_auto import AutoTokenizer as AutoTokenizer
from transformers.models.mixtral.configuration_mixtral import MixtralConfig as MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralForCausalLM as MixtralForCausalLM
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config as Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM as Qwen3ForCausalLM
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig as Qwen3MoeConfig
from transformers.tokenization_utils_base import PreTrainedTokenizerBase as PreTrainedTokenizerBase
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast as PreTrainedTokenizerFast
from transformers.utils.quantization_config import BitsAndBytesConfig as BitsAndBytesConfig
