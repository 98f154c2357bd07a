//! The types of the table that describes the driver's functions. `remoting/registry/parameters.yaml` explains them.

/// An exported symbol and its description.
pub struct Function {
    pub symbol: &'static str,
    pub entry: unsafe extern "C" fn(),
    /// The parameters, or `None` if they are not described. Then only the returned code is recorded.
    pub parameters: Option<&'static [Described]>,
}

impl Function {
    /// Returns the name without the suffixes of its variants, such as `_v2`.
    pub fn base(&self) -> &'static str {
        let name = self.symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        ["_v2", "_v3", "_v4"].iter().find_map(|version| name.strip_suffix(version)).unwrap_or(name)
    }

    /// Whether the null stream of this function is the per-thread default stream.
    pub fn is_per_thread(&self) -> bool {
        self.symbol.ends_with("_ptsz") || self.symbol.ends_with("_ptds")
    }

    /// Whether the function may write host memory after it has returned.
    pub fn is_asynchronous(&self) -> bool {
        self.base().ends_with("Async")
    }

    /// Whether the function invalidates handles, or memory of modules.
    pub fn unloads(&self) -> bool {
        matches!(self.base(), "cuModuleUnload" | "cuLibraryUnload" | "cuCtxDestroy" | "cuCtxDetach")
            || self.base().starts_with("cuDevicePrimaryCtxRe")
    }
}

/// All functions, sorted by symbol.
pub type Table = &'static [Function];

/// Returns the index of a symbol in the table.
pub fn place_of(table: Table, symbol: &str) -> Option<usize> {
    table.binary_search_by(|function| function.symbol.cmp(symbol)).ok()
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

pub struct Described {
    pub name: &'static str,
    pub direction: Direction,
    pub of: Type,
}

pub const fn p(name: &'static str, direction: Direction, of: Type) -> Described {
    Described { name, direction, of }
}

#[derive(Clone, Copy)]
pub enum Type {
    /// An integer: its size in bytes, and whether it is signed.
    Integer(usize, bool),
    Float,
    Handle(&'static str),
    NewHandle(&'static str),
    Address,
    Freed,
    Memory(Length),
    PageLocked(Length),
    Registered(Length),
    Host,
    Text,
    /// The path of a file. The file's contents are recorded too.
    File,
    TextBuffer(Length),
    StaticText,
    Bytes(Length),
    Data(Length),
    To(Length),
    From(Length),
    Blob(Length),
    List(&'static Type, Length),
    /// A structure: its size in bytes, and its fields as offset, name and type.
    Structure(usize, &'static [(usize, &'static str, Type)]),
    Image,
    Copy2d,
    Copy3d,
    Launch,
    /// The kernel parameters of the function in the parameter with this index.
    Params(usize),
    Extra,
    /// A host function. If the flag is set, the driver also passes the stream and a status to the function.
    Callback(bool),
    Entry,
    Table,
    PointerAttribute(usize),
    PointerAttributes(usize, usize),
    PoolAttribute(usize),
    StreamAttribute(usize),
}

/// A length in bytes or elements: the product of the factors.
#[derive(Clone, Copy)]
pub struct Length(pub &'static [Factor]);

pub enum Factor {
    Constant(usize),
    /// The value of the parameter with this index.
    Parameter(usize),
}

const INT: Type = Type::Integer(4, true);
const WORD: Type = Type::Integer(8, false);

/// Returns the type of the value that `cuPointerGetAttribute` writes for an attribute, or `None` if it is not known.
pub fn pointer_attribute(attribute: u64) -> Option<Type> {
    use driverapi::attributes::*;
    let Ok(attribute) = u32::try_from(attribute) else { return None };
    Some(match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => Type::Handle("context"),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | CU_POINTER_ATTRIBUTE_HOST_POINTER
        | CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Type::Address,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Type::Handle("pool"),
        // The driver chooses these numbers, and they differ from run to run.
        CU_POINTER_ATTRIBUTE_BUFFER_ID | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Type::Handle("block"),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | CU_POINTER_ATTRIBUTE_MAPPING_SIZE
        | CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => WORD,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
        | CU_POINTER_ATTRIBUTE_MAPPED
        | CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_IS_MANAGED
        | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => INT,
        _ => return None,
    })
}

pub fn pool_attribute(attribute: u64) -> Option<Type> {
    use driverapi::attributes::*;
    let Ok(attribute) = u32::try_from(attribute) else { return None };
    Some(match attribute {
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        | CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        | CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
        | CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        | CU_MEMPOOL_ATTR_USED_MEM_HIGH
        | CU_MEMPOOL_ATTR_MAX_POOL_SIZE => WORD,
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
        | CU_MEMPOOL_ATTR_ALLOCATION_TYPE
        | CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES
        | CU_MEMPOOL_ATTR_LOCATION_ID
        | CU_MEMPOOL_ATTR_LOCATION_TYPE
        | CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED => INT,
        _ => return None,
    })
}

/// Returns the type of the value of a stream attribute or a launch attribute.
pub fn launch_attribute(attribute: u64) -> Option<Type> {
    use driverapi::attributes::*;
    const EVENT: Type = Type::Handle("event");
    let Ok(attribute) = u32::try_from(attribute) else { return None };
    Some(match attribute {
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        | CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
        | CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
        | CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        | CU_LAUNCH_ATTRIBUTE_PRIORITY
        | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
        | CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => INT,
        CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP => Type::Integer(2, false),
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION | CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION => {
            Type::Structure(12, &[(0, "x", INT), (4, "y", INT), (8, "z", INT)])
        }
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT => {
            Type::Structure(16, &[(0, "event", EVENT), (8, "flags", INT), (12, "at_start", INT)])
        }
        CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => Type::Structure(12, &[(0, "event", EVENT), (8, "flags", INT)]),
        CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW => Type::Structure(
            28,
            &[
                (0, "base", Type::Address),
                (8, "bytes", WORD),
                (16, "ratio", Type::Float),
                (20, "hit", INT),
                (24, "miss", INT),
            ],
        ),
        _ => return None,
    })
}
