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
	// Kind says which of the fields below hold.
	Kind TypeKind
	// Bytes is the size of an Int or a Float.
	Bytes int64
	// Signed reports whether an Int is.
	Signed bool
	// Char is an Int spelt char, which is text where it is pointed to.
	Char bool
	// Name is the name of a Typedef.
	Name string
	// Elem is what a Pointer points to, an Array holds, a Typedef stands for, or a Func returns.
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
	// Tag is the name behind struct or union; empty for a nameless one.
	Tag string
	// Union tells a union from a struct.
	Union bool
	// Complete is false for one that is declared but never defined: an opaque handle's target.
	Complete bool
	// Fields are the members in order. A nameless struct or union inside has an empty name.
	Fields []Field
	// Bytes and Align are size and alignment.
	Bytes, Align int64
	// MinAlign is what _Alignas asks for; 0 where it does not.
	MinAlign int64
}

// Field is a member of a record, or a parameter.
type Field struct {
	// Name is empty for a nameless member or parameter.
	Name string
	// Type is the member's type.
	Type *Type
	// Offset is the distance from the start of the record in bytes; 0 for parameters.
	Offset int64
}

// Enum is an enumeration.
type Enum struct {
	// Tag is the name behind enum; it may be empty.
	Tag string
	// Values are the enumerators in order.
	Values []Enumerator
}

// Enumerator is a named constant.
type Enumerator struct {
	// Name is the constant's name.
	Name string
	// Value is its number.
	Value int64
}

// Resolve follows typedefs.
func (t *Type) Resolve() *Type {
	for t.Kind == Typedef {
		t = t.Elem
	}
	return t
}

// Size is the size in bytes under the LP64 model of 64-bit Linux.
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
			return 0, fmt.Errorf("struct %s is not defined here", r.Record.Tag)
		}
		return r.Record.Bytes, nil
	}
	return 0, fmt.Errorf("type without a size")
}

// maxBytes bounds the size of a type, so that sizes can be added without care.
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

// lay gives every field its offset and the record its size and alignment.
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
