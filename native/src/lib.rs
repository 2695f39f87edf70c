//! Decoding and encoding for cdfd. Arrays come and go as pyarrow's or numpy's, without a copy.

mod json_rows;
mod kafka_records;
mod parquet;
mod room;
mod trevni;

#[cfg(fuzzing)]
pub use parquet::fuzzing;
use pyo3::prelude::*;

// The C library gives the memory of each batch back to the kernel, which has to clear it again for the next one.
#[cfg(not(fuzzing))] // the address sanitizer has its own
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Decoding and encoding for cdfd in memory-safe machine code.
#[pymodule]
mod cdfd_native {
    use super::*;

    #[pymodule_export]
    use super::json_rows::module as json_rows;
    #[pymodule_export]
    use super::kafka_records::module as kafka_records;
    #[pymodule_export]
    use super::parquet::parquet_module;
    #[pymodule_export]
    use super::trevni::trevni;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // A panic becomes an error of Python, which contains the whole message.
        std::panic::set_hook(Box::new(|_| {}));
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
