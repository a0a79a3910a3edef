package codec

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// field is one encoded field of a struct.
type field struct {
	name      string
	typ       reflect.Type
	index     []int
	omitEmpty bool
	spec      string // declaration of a tensor in the tag
	key       []byte // the encoded name
}

// layout describes how a struct is encoded.
type layout struct {
	fields  []field // in the order of their declarations
	order   []int   // indices of fields in the order of their encoded names
	byName  map[string]int
	list    bool // encoded as a list of the fields, by the tag ",toarray"
	content bool // there are fields, encoded or not, except blank ones and those with the tag "-"
	problem string
}

var layouts sync.Map // reflect.Type to *layout

// layoutOf returns the layout of a struct with the names that the cbor library uses. Fields of embedded structs without
// a name in their tag, and of embedded pointers to structs, are promoted.
func layoutOf(t reflect.Type) *layout {
	if l, ok := layouts.Load(t); ok {
		return l.(*layout)
	}
	l := &layout{byName: map[string]int{}}
	if f, found := t.FieldByName("_"); found {
		l.list = slices.Contains(strings.Split(f.Tag.Get("cbor"), ",")[1:], "toarray")
	}
	l.add(t, nil, []reflect.Type{t})
	for i := range l.fields {
		f := &l.fields[i]
		f.key = append(message.AppendHead(nil, message.MajorText, len(f.name)), f.name...)
		l.order = append(l.order, i)
	}
	slices.SortFunc(l.order, func(a, b int) int { return bytes.Compare(l.fields[a].key, l.fields[b].key) })
	layouts.Store(t, l)
	return l
}

// fieldsOf returns the encoded fields of a struct.
func fieldsOf(t reflect.Type) []field { return layoutOf(t).fields }

// add adds the fields of t, which is embedded below the types in path.
func (l *layout) add(t reflect.Type, index []int, path []reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, ignored := nameOf(f)
		if ignored || f.Name == "_" {
			continue
		}
		l.content = true
		at := append(slices.Clone(index), i)
		if flattened(f) {
			l.embed(f, at, path)
			continue
		}
		if !f.IsExported() {
			continue
		}
		if slices.Contains(options, "keyasint") {
			l.refuse("the field %s has an integer as its name: use a text", f.Name)
		}
		if _, taken := l.byName[name]; taken {
			l.refuse("two fields have the name %s: rename one, or exclude it by the tag \"-\"", name)
			continue
		}
		l.byName[name] = len(l.fields)
		l.fields = append(l.fields, field{
			name: name, typ: f.Type, index: at, omitEmpty: slices.Contains(options, "omitempty"), spec: f.Tag.Get("tensor"),
		})
	}
}

// embed adds the fields of an embedded struct.
func (l *layout) embed(f reflect.StructField, at []int, path []reflect.Type) {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case slices.Contains(path, t):
		l.refuse("the type %s embeds itself", t)
		return
	case f.Type.Kind() == reflect.Pointer && !f.IsExported():
		l.refuse("the embedded pointer to %s cannot be set: export the type, or embed it without a pointer", t)
		return
	case encodesItself(t) || t == timeType:
		l.refuse("the embedded %s would lose its value: give it a name, as in At %s", t, t)
		return
	}
	before := len(l.fields)
	l.add(t, at, append(slices.Clone(path), t))
	if f.IsExported() && before == len(l.fields) && layoutOf(t).content {
		l.refuse("the embedded %s has only unexported fields: exclude it by the tag `cbor:\"-\"`", t)
	}
}

// refuse records the first reason why values of the struct cannot be carried.
func (l *layout) refuse(format string, args ...any) {
	if l.problem == "" {
		l.problem = fmt.Sprintf(format, args...)
	}
}

// nameOf returns the encoded name of a field and its options, and whether the field is ignored.
func nameOf(f reflect.StructField) (name string, options []string, ignored bool) {
	tag := f.Tag.Get("cbor")
	if tag == "" {
		tag = f.Tag.Get("json")
	}
	if tag == "-" {
		return "", nil, true
	}
	list := strings.Split(tag, ",")
	if list[0] == "" {
		list[0] = f.Name
	}
	return list[0], list[1:], false
}

// flattened reports whether f is an embedded struct, or a pointer to one, whose fields are promoted.
func flattened(f reflect.StructField) bool {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !f.Anonymous || t.Kind() != reflect.Struct || IsTensor(f.Type) || byValue(t) {
		return false
	}
	tag := f.Tag.Get("cbor")
	if tag == "" {
		tag = f.Tag.Get("json")
	}
	return tag == "" || strings.HasPrefix(tag, ",")
}

// get returns the field of v, or the zero Value if an embedded pointer on the path is nil.
func (f *field) get(v reflect.Value) reflect.Value {
	field, err := v.FieldByIndexErr(f.index)
	if err != nil {
		return reflect.Value{}
	}
	return field
}

// make returns the field of v and allocates embedded pointers on the path.
func (f *field) make(v reflect.Value) reflect.Value {
	for _, i := range f.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}
