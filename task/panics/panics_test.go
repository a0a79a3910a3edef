package panics

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// stubborn is a value that panics when it is printed.
type stubborn struct{ text *string }

func (s stubborn) Error() string { return *s.text }

func caught(value any) (err error) {
	defer func() { err = New(recover()) }()
	panic(value)
}

func TestPanicsAreErrors(t *testing.T) {
	for _, c := range []struct {
		value any
		text  string
		is    error
	}{
		{"boom", "panic: boom", nil},
		{7, "panic: 7", nil},
		{io.EOF, "panic: EOF", io.EOF},
	} {
		err := caught(c.value)
		require.EqualError(t, err, c.text)
		require.ErrorIs(t, err, ErrPanic)
		require.NotErrorIs(t, err, ErrGoexit)
		require.Equal(t, c.is, errors.Unwrap(err))
		var p *Error
		require.ErrorAs(t, err, &p)
		require.Equal(t, c.value, p.Value)
		require.Contains(t, string(p.Stack), "TestPanicsAreErrors")
	}
	require.Contains(t, caught(nil).Error(), "nil")
	require.Contains(t, caught(stubborn{}).Error(), "panic: ")
}
