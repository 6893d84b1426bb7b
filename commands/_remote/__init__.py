"""A running server as the commands see it, its two faces apart. Errors come with its words.

`Remote` is the OpenAI face, `Admin` the registry's; `upload` and `decided` bring an adapter through the gate.
"""

from .admin import Admin, adapter_path, path_of
from .gate import decided, rejection
from .openai import Remote
from .parts import Listener
from .uploads import upload
from .wishes import Wishes

__all__ = ["Admin", "Listener", "Remote", "Wishes", "adapter_path", "decided", "path_of", "rejection", "upload"]
