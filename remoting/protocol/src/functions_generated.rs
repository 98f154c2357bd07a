pub mod function {}
pub const TABLE_HASH: u64 = 0;
pub fn function_name(_number: u32) -> Option<&'static str> {
    None
}
