//! Decoding and encoding for cdfd. Arrays come and go as pyarrow's, without a copy.

use pyo3::prelude::*;

/// Decoding and encoding for cdfd in memory-safe machine code.
#[pymodule]
mod cdfd_native {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
