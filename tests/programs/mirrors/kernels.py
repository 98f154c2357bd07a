"""Kernels that change words of memory that host and device share."""

EXCHANGE_AND_BUMP = b"""
.version 7.0
.target sm_80
.address_size 64
// out[i] = *at[i]; *at[i] = value[i]
.visible .entry exchange(.param .u64 at, .param .u64 value, .param .u64 out, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [value];
    ld.param.u64 %rd3, [out];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p, %r2, %r1;
    @%p ret;
    mul.wide.u32 %rd4, %r2, 8;
    add.s64 %rd5, %rd1, %rd4;
    ld.global.u64 %rd6, [%rd5];
    mul.wide.u32 %rd4, %r2, 4;
    add.s64 %rd7, %rd2, %rd4;
    ld.global.u32 %r3, [%rd7];
    add.s64 %rd8, %rd3, %rd4;
    ld.global.u32 %r4, [%rd6];
    st.global.u32 [%rd8], %r4;
    st.global.u32 [%rd6], %r3;
    ret;
}
// at[i] += by
.visible .entry bump(.param .u64 at, .param .u32 by)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [at];
    ld.param.u32 %r1, [by];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r3, [%rd3];
    add.u32 %r4, %r3, %r1;
    st.global.u32 [%rd3], %r4;
    ret;
}
\0"""
