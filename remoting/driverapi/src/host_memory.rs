//! Places on the host that memory can be asked for at.

use crate::constants::{CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA};
use crate::types::CUmemLocation;
use std::path::Path;

/// Whether this is the memory of the program's machine, or a node of it. A machine without nodes has one, 0.
pub fn is_place_on_host(location: &CUmemLocation) -> bool {
    let is_node = |node: i32| node == 0 || Path::new(&format!("/sys/devices/system/node/node{node}")).exists();
    match location.type_ {
        CU_MEM_LOCATION_TYPE_HOST => true,
        CU_MEM_LOCATION_TYPE_HOST_NUMA => is_node(location.id),
        _ => false,
    }
}
