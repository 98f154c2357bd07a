"""llama.cpp's own test of its operations, CUDA against the CPU: a part of each group, natively and on a share."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from llama_cpp.decoding import SECONDS, native_command, program
from support.system import Appliance, appliance

pytestmark = pytest.mark.timeout(SECONDS + 60)
# Operations, and a pattern of the cases' parameters: small ones, and one of each kind of kernel.
ATTENTION = "FLASH_ATTN_EXT"
GROUPS = {
    "unary": ("SILU,GELU,TANH,EXP,RELU,SIGMOID,SQR,SIN,CLAMP", "ne(_a)?=\\[(5,7,11,13|10,5,4,3|10,3,3,2)\\]"),
    "glu": ("SWIGLU,GEGLU", "type=f32.*ne_a=\\[5,7,11,13\\]"),
    "reduce": ("SUM,SUM_ROWS,MEAN,ARGMAX,CUMSUM", "ne=\\[[0-9]{1,3},[0-9]{1,2},"),
    "binary": ("ADD,MUL,DIV,SUB", "type=f32,ne=\\[10,5,4,3\\]"),
    "sort": ("ARGSORT,TOP_K", "ne=\\[(8|16|60),10,10,10\\]"),
    "softmax": ("SOFT_MAX", "ne=\\[16,16,1,1\\]"),
    "norm": ("NORM,RMS_NORM,L2_NORM,GROUP_NORM", "ne=\\[64,5,4,3\\]"),
    "rope": ("ROPE", "type=f16,ne_a=\\[128,32,2,1\\].*ff=1"),
    "copies": ("CPY,DUP,CONT,CONCAT", "type(_src)?=(f16|q4_0),.*ne(_src|_a)?=\\[(2|10|11|128|256),"),
    "rows": ("GET_ROWS,SET_ROWS", "type(_src)?=(f16|f32|q4_K),.*(n=256,m=[58],r=[24],be1=[17],|nr23=\\[2,3\\],r=1,)"),
    "ssm": ("SSM_CONV,SSM_SCAN,RWKV_WKV6,GATED_LINEAR_ATTN", "."),
    "conv": ("CONV_2D_DW,CONV_TRANSPOSE_1D,IM2COL", "ne_(input|kernel)=\\[(10|12|3),"),
    "matrix": ("MUL_MAT", "type_a=(f16|q4_0|q4_K|q8_0),type_b=f32,m=16,n=(1|8|16),k=256,bs=\\[1,1\\]"),
    "experts": ("MUL_MAT_ID", "type_a=(f16|q4_0|q4_K),type_b=f32,n_mats=4,n_used=2,b=0,m=512,n=(1|32),k=256"),
    # Without tensor cores (40), with them, and by vectors: one token, with no other head on its keys, or keys in q8_0.
    "attention-40": (ATTENTION, "hsk=40,hsv=40,nh=4,nr23=\\[1,1\\],kv=113,nb=(1|3|32),mask=1,sinks=0"),
    "attention-64": (ATTENTION, "hsk=64,hsv=64,nh=4,nr23=\\[[14],1\\],kv=512,nb=(1|3|32),mask=1,sinks=1.*K=(f16|q8_0)"),
    "attention-vec": (
        ATTENTION,
        "hsk=(64|128),.*,nr23=\\[1,1\\],kv=512,nb=1,mask=0,sinks=0.*K=(f16|bf16)",
    ),
}


@pytest.fixture(scope="module")
def share() -> Iterator[Appliance]:
    with appliance("--grace", "0s") as it:
        yield it


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("where", ["native", "share"])
def test_operations_are_the_cpu_s(where: str, group: str, share: Appliance) -> None:
    operations, cases = GROUPS[group]
    command = (program("test-backend-ops"), "test", "-b", "CUDA0", "-o", operations, "-p", cases)
    whole = native_command(*command) if where == "native" else share.command(*command)
    done = subprocess.run(whole, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    passed = re.search(r"(\d+)/(\d+) tests passed", done.stdout)
    assert passed, done.stdout[-8000:]
    print(f"{group}: {passed[0]}")
    assert passed[1] == passed[2] and int(passed[1]) > 0
