package cheader

import "fmt"

// TypeKind is the kind of a type.
type TypeKind uint8

// The kinds of type.
const (
	Void TypeKind = iota
	Int
	Float
	Pointer
	Array
	Func
	Typedef
	RecordKind
	EnumKind
)

// Type is a C type.
type Type struct {
	// Kind determines which of the following fields are set.
	Kind TypeKind
	// Bytes is the size of an Int or a Float.
	Bytes int64
	// Signed reports whether an Int is signed.
	Signed bool
	// Char reports whether an Int is char. A pointer to it is text.
	Char bool
	// Name is the name of a Typedef.
	Name string
	// Elem is the target of a Pointer, the element of an Array, the underlying type of a Typedef, or the result of a
	// Func.
	Elem *Type
	// Len is the length of an Array.
	Len int64
	// Params are the parameters of a Func.
	Params []Field
	// Record is the struct or union of a RecordKind.
	Record *Record
	// Enum is the enumeration of an EnumKind.
	Enum *Enum
}

// Record is a struct or a union.
type Record struct {
	// Tag is the name after struct or union. It is empty for an anonymous one.
	Tag string
	// Union distinguishes a union from a struct.
	Union bool
	// Complete is false for a record that is declared but not defined, such as the target of an opaque handle.
	Complete bool
	// Fields are the members in order. An anonymous struct or union member has an empty name.
	Fields []Field
	// Bytes and Align are the size and alignment in bytes.
	Bytes, Align int64
	// MinAlign is the alignment requested with _Alignas, or 0.
	MinAlign int64
}

// Field is a member of a record, or a parameter.
type Field struct {
	// Name is empty for an anonymous member or parameter.
	Name string
	// Type is the member's type.
	Type *Type
	// Offset is the distance from the start of the record in bytes. It is 0 for parameters.
	Offset int64
}

// Enum is an enumeration.
type Enum struct {
	// Tag is the name after enum. It may be empty.
	Tag string
	// Values are the enumerators in order.
	Values []Enumerator
}

// Enumerator is a named constant.
type Enumerator struct {
	// Name is the constant's name.
	Name string
	// Value is the constant's value.
	Value int64
}

// Resolve returns the underlying type of a typedef, and other types unchanged.
func (t *Type) Resolve() *Type {
	for t.Kind == Typedef {
		t = t.Elem
	}
	return t
}

// Size returns the size in bytes in the LP64 model of 64-bit Linux.
func (t *Type) Size() (int64, error) {
	switch r := t.Resolve(); r.Kind {
	case Int, Float:
		return r.Bytes, nil
	case Pointer:
		return 8, nil
	case EnumKind:
		return 4, nil
	case Array:
		n, err := r.Elem.Size()
		if err == nil && n > 0 && r.Len > maxBytes/n {
			err = fmt.Errorf("array of more than %d bytes", maxBytes)
		}
		return n * r.Len, err
	case RecordKind:
		if !r.Record.Complete {
			return 0, fmt.Errorf("struct %s is not defined", r.Record.Tag)
		}
		return r.Record.Bytes, nil
	}
	return 0, fmt.Errorf("type without a size")
}

// maxBytes limits the size of a type, so that sums of sizes cannot overflow.
const maxBytes = 1 << 30

func (t *Type) align() int64 {
	switch r := t.Resolve(); r.Kind {
	case Int, Float:
		return r.Bytes
	case EnumKind:
		return 4
	case Array:
		return r.Elem.align()
	case RecordKind:
		return r.Record.Align
	}
	return 8
}

// lay sets the offset of every field and the size and alignment of the record.
func (r *Record) lay() error {
	r.Align = max(r.MinAlign, 1)
	var end int64
	for i := range r.Fields {
		f := &r.Fields[i]
		size, err := f.Type.Size()
		if err != nil {
			return fmt.Errorf("field %s: %w", f.Name, err)
		}
		align := f.Type.align()
		r.Align = max(r.Align, align)
		if r.Union {
			end = max(end, size)
			continue
		}
		f.Offset = (end + align - 1) / align * align
		if end = f.Offset + size; end > maxBytes {
			return fmt.Errorf("record of more than %d bytes", maxBytes)
		}
	}
	r.Bytes = (end + r.Align - 1) / r.Align * r.Align
	return nil
}
