"""A kernel that prints through vprintf, whose arguments lie in local memory."""

from __future__ import annotations

import ctypes

from softcuda import HEADER, function, launch, ok, start

FORMAT = b"number %d half %g\n\0"
PTX = (
    HEADER
    + f"""
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[{len(FORMAT)}] = {{{", ".join(map(str, FORMAT))}}};
.visible .entry show()
{{
    .local .align 8 .b8 depot[16];
    .reg .b64 %a<4>;
    .reg .b32 %r;
    mov.u64 %a1, depot;
    cvta.local.u64 %a1, %a1;
    st.b32 [%a1], 7;
    st.f64 [%a1+8], 0d3FE0000000000000;
    mov.u64 %a2, text;
    cvta.global.u64 %a2, %a2;
    {{
    .param .b64 p0;
    .param .b64 p1;
    .param .b32 back;
    st.param.b64 [p0], %a2;
    st.param.b64 [p1], %a1;
    call.uni (back), vprintf, (p0, p1);
    ld.param.b32 %r, [back];
    }}
    ret;
}}
"""
)

libc = ctypes.CDLL(None)
start()
libc.printf(b"before\n")
assert launch(function(PTX, "show"), []) == 0
ok("cuCtxSynchronize")
libc.printf(b"after\n")
libc.fflush(None)
