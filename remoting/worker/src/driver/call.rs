//! Macros that call a function of the table.

/// Calls a function of the table; `NOT_SUPPORTED` if the library lacks it.
macro_rules! call {
    ($self:ident . $field:ident ( $($arg:expr),* )) => {
        match $self.table.$field {
            // SAFETY: the table holds functions of CUDA's signatures (`Table::load`). Pointers given here are to live
            // memory of the size that the function documents; handles are the driver's own (see the module's head).
            Some(function) => match unsafe { function($($arg),*) } {
                0 => Ok(()),
                code => Err(code),
            },
            None => Err(driverapi::errors::CUDA_ERROR_NOT_SUPPORTED),
        }
    };
}

/// Like `call`, for a function that writes its result through its first parameter.
macro_rules! get {
    ($self:ident . $field:ident ( $init:expr $(, $arg:expr)* )) => {{
        let mut out = $init;
        call!($self.$field(&mut out $(, $arg)*)).map(|()| out)
    }};
}
