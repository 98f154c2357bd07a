//! Compiles `control.proto` with a compiler in Rust, so that `protoc` need not be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../proto/control.proto");
    let files = protox::compile(["control.proto"], ["../proto"])?;
    tonic_prost_build::configure().build_transport(false).bytes(".remotegpu.v1.Piece").compile_fds(files)?;
    Ok(())
}
