package message

import (
	"reflect"
	"slices"
	"strings"

	"github.com/fxamacker/cbor/v2"
)

// CodeRow maps a Go error to a code and a type.
type CodeRow struct {
	// Code is the class on the wire.
	Code Code
	// Type distinguishes the errors of the class. It is unique among the rows of a code.
	Type string
	// Err is the sentinel on both sides.
	Err error
	// Class makes the row match received errors of the code whose type has no row. At most one row of a code has it.
	Class bool
}

// CodeTable translates between errors and codes. If an error matches several rows, the first is its class and the
// others are sent with it. It is immutable.
type CodeTable struct{ rows []CodeRow }

// NewCodeTable returns a table of the given rows, followed by rows for the errors of this package and of the standard
// library: cancellation, deadlines, permission, closed objects, unsupported features.
func NewCodeTable(rows ...CodeRow) *CodeTable {
	return &CodeTable{rows: append(slices.Clone(rows), standardRows...)}
}

// standard is the table without additional rows.
var standard = NewCodeTable()

// Rows returns all rows, in order.
func (t *CodeTable) Rows() []CodeRow { return slices.Clone(t.rows) }

// Named returns the sentinel and the code of the first row with the type, or nothing if there is none.
func (t *CodeTable) Named(name string) []error {
	for _, row := range t.rows {
		if row.Type == name {
			return []error{row.Code, row.Err}
		}
	}
	return nil
}

// Encode is [CodeTable.EncodeWith] without details.
func (t *CodeTable) Encode(err error) *Error { return t.EncodeWith(err, ErrorDetails{}) }

// EncodeWith returns err as it is sent. A received or program-made *Error in its chain keeps its code, type and data,
// and a Code in its chain is its code. Otherwise the first matching row decides; an error without a row is
// [CodeInternal] with its Go type. The message is the text of the whole chain, cut at [MaxErrorMessage]. The details
// are sent with it, and the other rows that err matches. EncodeWith of nil is nil.
func (t *CodeTable) EncodeWith(err error, details ErrorDetails) *Error {
	if err == nil {
		return nil
	}
	found := t.look(err)
	out := &Error{Message: CutText(err.Error(), MaxErrorMessage)}
	classes := found.classes(t.rows)
	switch {
	case found.remote != nil && (found.remoteFirst || len(classes) == 0):
		out.Code, out.Type, out.Data = found.remote.Code, found.remote.Type, found.remote.Data
		if len(out.Data) > 0 {
			details = found.remote.Details()
		}
		if len(out.Data) == 0 || !details.empty() { // the program's data is kept
			details.Classes = append(details.Classes, classes...)
		}
	case len(classes) == 0:
		out.Code, out.Type = CodeInternal, typeName(err)
	default:
		out.Code, out.Type = classes[0].Code, classes[0].Type
		if found.remote != nil && details.Cause == nil {
			details.Cause = found.remote
		}
		details.Classes = append(details.Classes, without(classes[1:], details.Cause)...)
	}
	if out.Type == "" {
		out.Type = t.classType(out.Code)
	}
	out.Type = CutText(out.Type, MaxErrorType)
	out.Data = dataOf(out, details)
	return out
}

// classType returns the type of a code's class row.
func (t *CodeTable) classType(code Code) string {
	for _, row := range t.rows {
		if row.Code == code && row.Class {
			return row.Type
		}
	}
	return strings.ToLower(code.String())
}

// typeName returns the Go type of an error, below errors that only wrap another, or the name that a replacement error
// reports.
func typeName(err error) string {
	for {
		if named, ok := err.(interface{ TypeName() string }); ok {
			return named.TypeName()
		}
		next, ok := err.(interface{ Unwrap() error })
		if !ok || next.Unwrap() == nil || !strings.HasPrefix(reflect.TypeOf(err).String(), "*fmt.") {
			return reflect.TypeOf(err).String()
		}
		err = next.Unwrap()
	}
}

// found holds the matches in a chain of errors.
type found struct {
	rows        []bool // by row of the table
	codes       []Code // codes in the chain itself
	remote      *Error // *Error in the chain
	remoteFirst bool   // no other match precedes it
	more        []ErrorClass
}

// classes returns the classes that were found, in order.
func (f *found) classes(rows []CodeRow) []ErrorClass {
	var list []ErrorClass
	add := func(c ErrorClass) {
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	for _, c := range f.codes {
		add(ErrorClass{Code: c})
	}
	for i, row := range rows {
		if f.rows[i] {
			add(ErrorClass{Code: row.Code, Type: row.Type})
		}
	}
	for _, c := range f.more {
		add(c)
	}
	return list
}

// without returns list without the classes that a cause reports itself.
func without(list []ErrorClass, cause *Error) []ErrorClass {
	if cause == nil {
		return list
	}
	said := cause.Details().Classes
	return slices.DeleteFunc(list, func(c ErrorClass) bool {
		return c == ErrorClass{Code: cause.Code, Type: cause.Type} || slices.Contains(said, c)
	})
}

// look searches a chain of errors. The matches of an *Error are its own.
func (t *CodeTable) look(err error) *found {
	f := &found{rows: make([]bool, len(t.rows))}
	any := false
	var walk func(err error)
	walk = func(err error) {
		switch e := err.(type) {
		case nil:
			return
		case *remoteError:
			f.meet(e.err, !any)
			return
		case *Error:
			f.meet(e, !any)
			return
		case Code:
			any = true
			f.codes = append(f.codes, e)
			return
		}
		is, _ := err.(interface{ Is(error) bool })
		for i, row := range t.rows {
			if err == row.Err || is != nil && is.Is(row.Err) {
				any, f.rows[i] = true, true
			}
		}
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				walk(err)
			}
		}
	}
	walk(err)
	return f
}

// meet records an *Error in the chain. The first of several is kept whole; of the others only the class is recorded.
func (f *found) meet(e *Error, first bool) {
	if f.remote == nil {
		f.remote, f.remoteFirst = e, first
		return
	}
	f.more = append(f.more, ErrorClass{Code: e.Code, Type: e.Type})
}

// dataOf returns the data of an error with details. What a receiver would not read is omitted, causes first.
func dataOf(e *Error, details ErrorDetails) RawMessage {
	if details.empty() {
		if !sendable(e.Data) {
			return nil
		}
		return e.Data
	}
	if details.Cause != nil {
		details.Cause = bounded(details.Cause, MaxErrorCauses)
	}
	data, err := MarshalShown(details)
	if err != nil || len(data) > MaxErrorData {
		details.Cause = nil
		if data, err = MarshalShown(details); err != nil || len(data) > MaxErrorData {
			return nil
		}
	}
	return data
}

// bounded returns a cause with at most the given number of nested causes.
func bounded(e *Error, causes int) *Error {
	out := &Error{Code: e.Code, Message: CutText(e.Message, MaxErrorMessage), Type: CutText(e.Type, MaxErrorType), Data: e.Data}
	if d := e.Details(); !d.empty() {
		if d.Cause != nil && causes > 1 {
			d.Cause = bounded(d.Cause, causes-1)
		} else {
			d.Cause = nil
		}
		if out.Data = nil; !d.empty() {
			out.Data, _ = MarshalShown(d)
		}
	}
	if !sendable(out.Data) {
		out.Data = nil
	}
	return out
}

// sendable reports whether data, which may be empty, is an item that receivers accept as the data of an error.
func sendable(data RawMessage) bool {
	return len(data) == 0 || len(data) <= MaxErrorData && dataDecMode.Wellformed(data) == nil && InvalidText(data) == nil
}

// dataDecMode limits the depth of the program's data of an error, which must fit into the last cause of a task in a
// list.
var dataDecMode = mustDataDecMode()

func mustDataDecMode() cbor.DecMode {
	o := decMode.DecOptions()
	o.MaxNestedLevels = MaxDepth - 4 - 2*MaxErrorCauses
	m, err := o.DecMode()
	if err != nil {
		panic(err) // the options are constants
	}
	return m
}

// Decode returns a received error that matches errors.Is for the sentinels of its class, of its details and of more,
// and errors.As for *Error. Its text is the peer's message. Decode of nil is nil.
func (t *CodeTable) Decode(e *Error, more ...error) error {
	if e == nil {
		return nil
	}
	r := &remoteError{err: e, also: t.sentinels(ErrorClass{Code: e.Code, Type: e.Type})}
	for _, class := range e.Details().Classes {
		r.also = append(append(r.also, class.Code), t.sentinels(class)...)
	}
	r.also = append(r.also, more...)
	if len(r.also) == 0 {
		return e
	}
	return r
}

// sentinels returns those of the rows with the class's type, or of the class row of its code.
func (t *CodeTable) sentinels(class ErrorClass) (list []error) {
	var fallback []error
	for _, row := range t.rows {
		switch {
		case row.Code != class.Code:
		case row.Type == class.Type:
			list = append(list, row.Err)
		case row.Class:
			fallback = []error{row.Err}
		}
	}
	if len(list) == 0 {
		return fallback
	}
	return list
}

// remoteError is an *Error with the sentinels that it matches.
type remoteError struct {
	err  *Error
	also []error
}

func (r *remoteError) Error() string { return r.err.Error() }

func (r *remoteError) Unwrap() []error { return append([]error{r.err}, r.also...) }
