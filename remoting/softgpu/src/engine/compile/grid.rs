//! Functions of NVIDIA's device runtime for the grid of a cooperative launch. Compilers that do not use the header
//! cooperative_groups, such as numba's, call them. `libcudadevrt.a` has them only as machine code.

use crate::engine::ptx::ast::Module;

/// The PTX of these functions. The barrier counts as in the header (`cooperative_groups/details/sync.h`): each other
/// block adds 1, and the first block adds a number that makes the highest bit change when all blocks have arrived.
pub const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.weak .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
    .reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p;
    mov.u32 %r1, %envreg2; mov.u32 %r2, %envreg1; mov.b64 %d1, {%r1, %r2};
    ld.param.u32 %r3, [scope];
    setp.ne.u32 %p, %r3, 1;
    @%p mov.u64 %d1, 0;
    st.param.b64 [handle], %d1;
    ret;
}
.weak .func (.param .b32 error) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
    .reg .b32 %r<8>; .reg .b64 %d<2>; .reg .pred %p;
    ld.param.u64 %d1, [handle];
    mov.u32 %r0, 1;
    setp.eq.u64 %p, %d1, 0;
    @%p bra DONE;
    bar.sync 0;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3;
    setp.ne.u32 %p, %r1, 0;
    @%p bra TOGETHER;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3;
    setp.eq.u32 %p, %r1, 0;
    mov.u32 %r1, %nctaid.x; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %nctaid.z;
    mul.lo.u32 %r1, %r1, %r2; mul.lo.u32 %r1, %r1, %r3;
    sub.u32 %r1, 0x80000001, %r1;
    selp.u32 %r1, %r1, 1, %p;
    atom.add.release.gpu.u32 %r2, [%d1+4], %r1;
SPIN:
    ld.acquire.gpu.u32 %r3, [%d1+4];
    xor.b32 %r3, %r3, %r2;
    setp.ge.s32 %p, %r3, 0;
    @%p bra SPIN;
TOGETHER:
    bar.sync 0;
    mov.u32 %r0, 0;
DONE:
    st.param.b32 [error], %r0;
    ret;
}
";

/// Whether a program needs [`PTX`], because it calls one of the functions without a definition of its own.
pub fn is_wanted(modules: &[Module]) -> bool {
    let mut functions = modules.iter().flat_map(|module| &module.functions);
    functions.any(|function| function.body.is_none() && function.name.starts_with("cudaCG"))
}
