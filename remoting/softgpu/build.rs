//! The library answers to the name programs link against, whatever its file is called.
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
