//! Lists of two levels, as Hive and Spark's legacy format have them.
//!
//! Such a list has a repeated group that is its element. If that is a list or a map itself, the crate `parquet` does not know it. With a required
//! group between, the levels and the columns are the same, and it does.

use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::file::metadata::{FileMetaData, ParquetMetaData, ParquetMetaDataBuilder};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

use super::failure::Result;

/// The footer with a group between lists and elements that are lists or maps.
pub fn with_elements(metadata: ParquetMetaData) -> Result<ParquetMetaData> {
    let file = metadata.file_metadata();
    let root = file.schema_descr().root_schema_ptr();
    let schema = with_elements_below(&root)?;
    if Arc::ptr_eq(&schema, &root) {
        return Ok(metadata);
    }
    let file = FileMetaData::new(
        file.version(),
        file.num_rows(),
        file.created_by().map(str::to_owned),
        file.key_value_metadata().cloned(),
        Arc::new(SchemaDescriptor::new(schema)),
        file.column_orders().cloned(),
    );
    let groups = metadata.into_builder().take_row_groups();
    Ok(ParquetMetaDataBuilder::new(file)
        .set_row_groups(groups)
        .build())
}

fn with_elements_below(kind: &TypePtr) -> Result<TypePtr> {
    if kind.is_primitive() {
        return Ok(Arc::clone(kind));
    }
    let fields = kind.get_fields().iter().map(|field| {
        let field = with_elements_below(field)?;
        if annotation(kind) == Some(Annotation::List) && is_element(&field) {
            let element = rebuilt(&field, Repetition::REQUIRED, field.get_fields().to_vec())?;
            let between = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
            return Ok(Arc::new(
                between.with_fields(vec![Arc::new(element)]).build()?,
            ));
        }
        Ok(field)
    });
    let fields = fields.collect::<Result<Vec<_>>>()?;
    let before = kind.get_fields().iter();
    if before
        .zip(&fields)
        .all(|(before, after)| Arc::ptr_eq(before, after))
    {
        return Ok(Arc::clone(kind));
    }
    if kind.is_schema() {
        let root = Type::group_type_builder(kind.name()).with_fields(fields);
        return Ok(Arc::new(root.build()?));
    }
    let repetition = kind.get_basic_info().repetition();
    Ok(Arc::new(rebuilt(kind, repetition, fields)?))
}

/// Whether a list's repeated field is a list or a map of its own: the group between list and element has no annotation.
fn is_element(field: &Type) -> bool {
    field.is_group()
        && field.get_basic_info().has_repetition()
        && field.get_basic_info().repetition() == Repetition::REPEATED
        && annotation(field).is_some()
}

#[derive(PartialEq)]
enum Annotation {
    List,
    Map,
}

fn annotation(kind: &Type) -> Option<Annotation> {
    let info = kind.get_basic_info();
    match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::List), _) | (_, ConvertedType::LIST) => Some(Annotation::List),
        (Some(LogicalType::Map), _) | (_, ConvertedType::MAP) => Some(Annotation::Map),
        _ => None,
    }
}

fn rebuilt(kind: &Type, repetition: Repetition, fields: Vec<TypePtr>) -> Result<Type> {
    let info = kind.get_basic_info();
    Ok(Type::group_type_builder(kind.name())
        .with_repetition(repetition)
        .with_converted_type(info.converted_type())
        .with_logical_type(info.logical_type_ref().cloned())
        .with_id(info.has_id().then(|| info.id()))
        .with_fields(fields)
        .build()?)
}
