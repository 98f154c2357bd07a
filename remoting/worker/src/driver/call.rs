//! Macros that call a function of the driver's table.

/// Calls a function of the table. Returns `NOT_SUPPORTED` if the library lacks the function.
macro_rules! call {
    ($self:ident . $field:ident ( $($arg:expr),* )) => {
        match $self.table.$field {
            // SAFETY: the table holds functions of CUDA's signatures (`Table::load`). Pointers that are passed point to
            // live memory of the size that the function documents. Handles belong to this driver (see the module's
            // documentation).
            Some(function) => match unsafe { function($($arg),*) } {
                0 => Ok(()),
                code => Err(code),
            },
            None => Err(driverapi::errors::CUDA_ERROR_NOT_SUPPORTED),
        }
    };
}

/// Like `call`, for a function that writes its result through its first parameter. Returns that result.
macro_rules! get {
    ($self:ident . $field:ident ( $init:expr $(, $arg:expr)* )) => {{
        let mut out = $init;
        call!($self.$field(&mut out $(, $arg)*)).map(|()| out)
    }};
}
