package task

import (
	"errors"
	"fmt"
	"strings"
)

// MaxErrorBytes is the maximum length of an error's text that a task keeps whole.
const MaxErrorBytes = 8 << 10

// maxWrapped limits how many errors wrapped by a long one are examined, and how many are kept.
const maxWrapped = 64

// shortError replaces an error with a long text, which a task would keep for its lifetime.
type shortError struct {
	text    string
	kind    string  // type name of the replaced error
	wrapped []error // wrapped errors with short texts
}

func (e *shortError) Error() string { return e.text }

// TypeName returns the type name of the replaced error.
func (e *shortError) TypeName() string { return e.kind }

func (e *shortError) Unwrap() []error { return e.wrapped }

// kindOf returns the type name of an error, below wrappers of fmt.Errorf.
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

// shortened returns the form of an error that a task keeps. If its text is long, that is the beginning of the text and
// each wrapped error with a short text, so that errors.Is and errors.As still match those.
func shortened(err error) error {
	text, ok := textOf(err)
	if !ok || len(text) <= MaxErrorBytes {
		return err
	}
	short := &shortError{kind: kindOf(err), text: fmt.Sprintf("%s… (%d bytes left out)", strings.ToValidUTF8(strings.Clone(text[:MaxErrorBytes]), "?"), len(text)-MaxErrorBytes)}
	if errors.Is(err, ErrPanic) { // such as a panic with a long value, which wraps nothing
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

// unwrap returns the errors that err wraps.
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

// textOf returns the text of an error. It returns false for nil and for an error whose Error method panics.
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
