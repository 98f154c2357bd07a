//! Says which kernels of PTX files the engine can execute: `cargo run --example ptx_check -- FILE...`

use softgpu::engine::Program;

fn main() {
    let mut failed = 0;
    for path in std::env::args().skip(1) {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                println!("{path}: {error}");
                failed += 1;
                continue;
            }
        };
        match Program::compile(&[&text]) {
            Err(error) => {
                println!("{path}: {error}");
                failed += 1;
            }
            Ok(program) => {
                for kernel in program.kernels() {
                    match &kernel.unsupported {
                        None => println!(
                            "{path}: {}: {} registers, {} bytes shared, {} bytes local",
                            kernel.name, kernel.registers, kernel.static_shared, kernel.local_bytes
                        ),
                        Some(why) => {
                            println!("{path}: {} is not supported: {why}", kernel.name);
                            failed += 1;
                        }
                    }
                }
            }
        }
    }
    std::process::exit(i32::from(failed > 0));
}
