package message

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"
)

// CodeRow ties a code and a type to the error by which Go code knows them.
type CodeRow struct {
	// Code is the class that crosses.
	Code Code
	// Type is the word that tells the errors of the class apart. No two rows of a code have the same.
	Type string
	// Err is the sentinel on both sides.
	Err error
	// Class makes the row stand for received errors of the code whose type no row has. At most one row of a code has
	// it.
	Class bool
}

// CodeTable translates between errors and codes. Of several rows that an error answers to the first is its class, and
// the others are sent along. It is immutable.
type CodeTable struct{ rows []CodeRow }

// NewCodeTable makes a table of the given rows, followed by those for the errors of this package and of the standard
// library: cancellation, deadlines, permission, closed things, unsupported features.
func NewCodeTable(rows ...CodeRow) *CodeTable {
	return &CodeTable{rows: append(slices.Clone(rows), standardRows...)}
}

// standard is the table without rows of anybody's own.
var standard = NewCodeTable()

// Rows are all rows, in order.
func (t *CodeTable) Rows() []CodeRow { return slices.Clone(t.rows) }

// Named are the sentinels of the first row with the type, and its code; none where no row has it.
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

// EncodeWith returns err as it is sent. An *Error in its chain that came from another process, or was made by the
// program, keeps its code, type and data, and a Code in its chain is its code; else the first row that it answers to
// decides, and an error that no row knows is [CodeInternal] with its Go type. The message is the text of the whole
// chain, cut at [MaxErrorMessage]. The details go along, with the other rows that err answers to. EncodeWith of nil is
// nil.
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
		if len(out.Data) == 0 || !details.empty() { // data of the program's own stays as it is
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

// classType is the type of a code without one.
func (t *CodeTable) classType(code Code) string {
	for _, row := range t.rows {
		if row.Code == code && row.Class {
			return row.Type
		}
	}
	return strings.ToLower(code.String())
}

// typeName is the Go type of an error, below what only wraps another, or what an error that stands for another says.
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

// found is what a chain of errors answers to.
type found struct {
	rows        []bool // by row of the table
	codes       []Code // that stand in the chain themselves
	remote      *Error // that is in it
	remoteFirst bool   // nothing else was found before it
	more        []ErrorClass
}

// classes are the classes that were found, the first one first.
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

// without is list without the classes that a cause says itself.
func without(list []ErrorClass, cause *Error) []ErrorClass {
	if cause == nil {
		return list
	}
	said := cause.Details().Classes
	return slices.DeleteFunc(list, func(c ErrorClass) bool {
		return c == ErrorClass{Code: cause.Code, Type: cause.Type} || slices.Contains(said, c)
	})
}

// look walks through a chain of errors. What an *Error answers to it says itself.
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

// meet notes an *Error in the chain. Of several the first stands for itself, and of the others the class is noted.
func (f *found) meet(e *Error, first bool) {
	if f.remote == nil {
		f.remote, f.remoteFirst = e, first
		return
	}
	f.more = append(f.more, ErrorClass{Code: e.Code, Type: e.Type})
}

// dataOf is the data of an error with details. What a receiver would not read is left out, the causes first.
func dataOf(e *Error, details ErrorDetails) RawMessage {
	if details.empty() {
		if len(e.Data) > MaxErrorData || len(e.Data) > 0 && dataDecMode.Wellformed(e.Data) != nil {
			return nil
		}
		return e.Data
	}
	if details.Cause != nil {
		details.Cause = bounded(details.Cause, MaxErrorCauses)
	}
	data, err := Marshal(details)
	if err != nil || len(data) > MaxErrorData {
		details.Cause = nil
		if data, err = Marshal(details); err != nil || len(data) > MaxErrorData {
			return nil
		}
	}
	return data
}

// bounded is a cause with at most so many errors in a row.
func bounded(e *Error, causes int) *Error {
	out := &Error{Code: e.Code, Message: CutText(e.Message, MaxErrorMessage), Type: CutText(e.Type, MaxErrorType), Data: e.Data}
	if d := e.Details(); !d.empty() {
		if d.Cause != nil && causes > 1 {
			d.Cause = bounded(d.Cause, causes-1)
		} else {
			d.Cause = nil
		}
		if out.Data = nil; !d.empty() {
			out.Data, _ = Marshal(d)
		}
	}
	if len(out.Data) > 0 && (len(out.Data) > MaxErrorData || dataDecMode.Wellformed(out.Data) != nil) {
		out.Data = nil
	}
	return out
}

// dataDecMode bounds how deep the program's own data of an error is: in the last cause of a task of a list there must
// be room for it.
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

// Decode returns a received error as one that answers errors.Is for the sentinels of its class and of those in its
// details, and for those of more, and errors.As for *Error. Its text is the peer's message. Decode of nil is nil.
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

// sentinels are those of a class: of the rows with its type, or else of the row that stands for its code.
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

// remoteError is an *Error and what it answers to.
type remoteError struct {
	err  *Error
	also []error
}

func (r *remoteError) Error() string { return r.err.Error() }

func (r *remoteError) Unwrap() []error { return append([]error{r.err}, r.also...) }

// CutText is a text of at most max bytes, which must be 8 or more: a longer one is cut and, where max is 64 or more,
// says how much was left out. The result is UTF-8 whatever the text was.
func CutText(text string, max int) string {
	if len(text) <= max && utf8.ValidString(text) {
		return text
	}
	if len(text) <= max {
		return strings.ToValidUTF8(text, "?")
	}
	n := max - len("…")
	if max >= 64 {
		n = max - len("… (9223372036854775807 bytes left out)")
	}
	for i := 1; i < utf8.UTFMax && !utf8.RuneStart(text[n]); i++ {
		n--
	}
	cut := strings.ToValidUTF8(text[:n], "?") + "…"
	if max < 64 {
		return cut
	}
	return fmt.Sprintf("%s (%d bytes left out)", cut, len(text)-n)
}
