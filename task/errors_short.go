package task

import (
	"errors"
	"fmt"
	"strings"
)

// MaxErrorBytes is the longest text of an error that a task keeps whole.
const MaxErrorBytes = 8 << 10

// maxWrapped is how many errors are looked at, and how many are kept, of those that a long one wraps.
const maxWrapped = 64

// shortError stands for an error with a long text, which a task would keep for as long as it is kept itself.
type shortError struct {
	text    string
	kind    string  // the type of the error, which programs and people are told
	wrapped []error // those with short texts
}

func (e *shortError) Error() string { return e.text }

// TypeName returns the name of the type of the error that it stands for.
func (e *shortError) TypeName() string { return e.kind }

func (e *shortError) Unwrap() []error { return e.wrapped }

// kindOf returns the type of an error, below what fmt.Errorf wraps around it.
func kindOf(err error) string {
	for {
		kind := fmt.Sprintf("%T", err)
		next := errors.Unwrap(err)
		if next == nil || !strings.HasPrefix(kind, "*fmt.") {
			return kind
		}
		err = next
	}
}

// shortened is what a task keeps of an error. Where the text is long that is its beginning, and each error wrapped in
// it whose own text is short, so that errors.Is and errors.As still find those.
func shortened(err error) error {
	text, ok := textOf(err)
	if !ok || len(text) <= MaxErrorBytes {
		return err
	}
	short := &shortError{kind: kindOf(err), text: fmt.Sprintf("%s… (%d bytes left out)", strings.ToValidUTF8(strings.Clone(text[:MaxErrorBytes]), "?"), len(text)-MaxErrorBytes)}
	if errors.Is(err, ErrPanic) { // as a panic with a long value is, which wraps nothing
		short.wrapped = append(short.wrapped, ErrPanic)
	}
	for list, looked := unwrap(err), 0; len(list) > 0 && looked < maxWrapped; looked++ {
		next := list[0]
		list = list[1:]
		switch text, ok := textOf(next); {
		case !ok:
		case len(text) <= MaxErrorBytes:
			short.wrapped = append(short.wrapped, next)
		default:
			list = append(list, unwrap(next)...)
		}
	}
	return short
}

// unwrap are the errors that err wraps.
func unwrap(err error) []error {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return []error{inner}
		}
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	}
	return nil
}

// textOf is the text of an error; false for no error, and for one that panics when it is asked.
func textOf(err error) (text string, ok bool) {
	if err == nil {
		return "", false
	}
	defer func() {
		if recover() != nil {
			text, ok = "", false
		}
	}()
	return err.Error(), true
}
