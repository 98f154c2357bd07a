//! Locations in host memory, for allocation and prefetching.

use crate::constants::{CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA};
use crate::types::CUmemLocation;
use std::path::Path;

/// Whether the location is the host's memory, or one of its NUMA nodes. A machine without NUMA has node 0.
pub fn is_place_on_host(location: &CUmemLocation) -> bool {
    let is_node = |node: i32| node == 0 || Path::new(&format!("/sys/devices/system/node/node{node}")).exists();
    match location.type_ {
        CU_MEM_LOCATION_TYPE_HOST => true,
        CU_MEM_LOCATION_TYPE_HOST_NUMA => is_node(location.id),
        _ => false,
    }
}
