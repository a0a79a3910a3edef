package message

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

// received returns an error as the peer receives it.
func received(t *testing.T, e *Error) *Error {
	t.Helper()
	var out Error
	require.NoError(t, Unmarshal(encoded(t, e), &out))
	return &out
}

// Every row survives a round trip and matches its own sentinel and code on the other side, and no other row's.
func TestCodeTable(t *testing.T) {
	t.Parallel()
	gone, missing := errors.New("gone"), errors.New("missing")
	table := NewCodeTable(
		CodeRow{Code: CodeNotFound, Type: "missing", Err: missing}, CodeRow{Code: CodeStaleHandle, Type: "gone", Err: gone, Class: true})
	seen := map[ErrorClass]bool{}
	for _, row := range table.Rows() {
		class := ErrorClass{Code: row.Code, Type: row.Type}
		require.False(t, seen[class], "%v is there twice", class)
		require.NotEmpty(t, row.Type)
		seen[class] = true
		local := fmt.Errorf("operation: %w", row.Err)
		sent := table.Encode(local)
		require.Equal(t, Error{Code: row.Code, Type: row.Type, Message: local.Error()}, *sent)
		remote := table.Decode(received(t, sent))
		require.EqualError(t, remote, local.Error())
		for _, other := range table.Rows() {
			require.Equal(t, errors.Is(row.Err, other.Err), errors.Is(remote, other.Err), "%v, %v", row.Err, other.Err)
			require.Equal(t, other.Code == row.Code, errors.Is(remote, other.Code))
		}
		var e *Error
		require.ErrorAs(t, remote, &e)
	}
	require.ErrorIs(t, table.Decode(&Error{Code: CodeDeadlineExceeded}), context.DeadlineExceeded, "without a type")
	require.NotErrorIs(t, table.Decode(&Error{Code: CodeDeadlineExceeded}), os.ErrDeadlineExceeded)
	require.ErrorIs(t, table.Decode(&Error{Code: CodeClosed, Type: "another"}), os.ErrClosed, "with one that nobody knows")
	require.NotErrorIs(t, table.Decode(&Error{Code: CodeClosed, Type: "another"}), net.ErrClosed)
	require.NotErrorIs(t, table.Decode(&Error{Code: CodeNotFound}), missing, "that row does not stand for its code")
	require.Equal(t, &Error{Code: 999}, table.Decode(&Error{Code: 999}))
	require.Nil(t, table.Encode(nil))
	require.NoError(t, table.Decode(nil))
}

// An error can have several classes. The first row decides, and the others arrive too.
func TestErrorsOfSeveralClasses(t *testing.T) {
	t.Parallel()
	missing := errors.New("missing")
	table := NewCodeTable(CodeRow{Code: CodeNotFound, Type: "missing", Err: missing})
	for _, err := range []error{
		fmt.Errorf("x: %w: %w", missing, os.ErrPermission), fmt.Errorf("x: %w: %w", os.ErrPermission, missing),
		fmt.Errorf("x: %w", errors.Join(os.ErrPermission, missing)),
	} {
		sent := received(t, table.Encode(err))
		require.Equal(t, CodeNotFound, sent.Code)
		require.Equal(t, "missing", sent.Type)
		remote := table.Decode(sent)
		for _, is := range []error{missing, os.ErrPermission, CodeNotFound, CodePermissionDenied} {
			require.ErrorIs(t, remote, is)
		}
		require.NotErrorIs(t, remote, CodeClosed)
		again := table.Decode(received(t, table.Encode(fmt.Errorf("passed on: %w", remote))))
		require.EqualError(t, again, "passed on: "+err.Error())
		require.ErrorIs(t, again, os.ErrPermission)
	}
	require.ErrorIs(t, table.Decode(table.Encode(wire.ErrTimeout)), os.ErrDeadlineExceeded)
}

func TestErrorsThatNoRowKnows(t *testing.T) {
	t.Parallel()
	table := NewCodeTable()
	_, missing := os.Open("/dev/null/x")
	for _, c := range []struct {
		err  error
		want Error
	}{
		{errors.New("else"), Error{Code: CodeInternal, Type: "*errors.errorString"}},
		{fmt.Errorf("a: %w", fmt.Errorf("b: %w", missing)), Error{Code: CodeInternal, Type: "*fs.PathError"}},
		{fmt.Errorf("x: %w", CodeTask), Error{Code: CodeTask, Type: "task"}},
		{fmt.Errorf("x: %w", CodeClosed), Error{Code: CodeClosed, Type: "closed"}},
		{fmt.Errorf("x: %w", &Error{Code: CodeTask, Type: "T", Message: "m"}), Error{Code: CodeTask, Type: "T"}},
		{fmt.Errorf("x: %w", &Error{Code: 400, Message: "m"}), Error{Code: 400, Type: "code 400"}},
	} {
		c.want.Message = c.err.Error()
		require.Equal(t, &c.want, table.Encode(c.err))
	}
}

// A received error is passed on unchanged unless it is the cause of another error.
func TestErrorsOfOthersArePassedOn(t *testing.T) {
	t.Parallel()
	table := NewCodeTable()
	data := encoded(t, map[string]int{"limit": 4096})
	theirs := &Error{Code: CodeNotFound, Type: "page", Message: "no page 7", Data: data}
	sent := table.Encode(errors.Join(fmt.Errorf("read: %w", theirs), os.ErrClosed))
	require.Equal(t, CodeNotFound, sent.Code)
	require.Equal(t, "page", sent.Type)
	require.EqualValues(t, data, sent.Data, "the program's own data stays")
	sent = received(t, table.Encode(fmt.Errorf("%w: %w", wire.ErrProtocol, table.Decode(theirs))))
	require.Equal(t, CodeProtocol, sent.Code)
	require.Equal(t, theirs, sent.Details().Cause)
	sent = table.Encode(errors.Join(&Error{Code: 300}, &Error{Code: 301, Type: "t"}, os.ErrClosed))
	require.Equal(t, []ErrorClass{{CodeClosed, "closed"}, {301, "t"}}, sent.Details().Classes)
	require.EqualValues(t, 300, sent.Code)
}

func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	table := NewCodeTable()
	sent := received(t, table.Encode(errors.New(strings.Repeat("é\xff\x00", 10<<20))))
	require.LessOrEqual(t, len(sent.Message), MaxErrorMessage)
	require.True(t, utf8.ValidString(sent.Message))
	require.Regexp(t, `… \(419\d+ bytes left out\)$`, sent.Message)
	deep := []byte("\xa0")
	for range 3 * MaxDepth {
		deep = append([]byte("\x81"), deep...)
	}
	for name, data := range map[string]RawMessage{"long": encoded(t, make([]byte, MaxErrorData)), "deep": deep, "no item": {0x81}} {
		sent = received(t, table.Encode(&Error{Code: 40, Type: strings.Repeat("t", 1<<20), Message: "m", Data: data}))
		require.Nil(t, sent.Data, name)
		require.LessOrEqual(t, len(sent.Type), MaxErrorType)
		sent = received(t, table.Encode(fmt.Errorf("%w: %w", os.ErrClosed, &Error{Code: 40, Data: data})))
		require.Nil(t, sent.Details().Cause.Data, name)
	}
	// The deepest error can be decoded at the deepest place.
	own := encoded(t, [][][][]string{{{{"x"}}}})
	require.Error(t, dataDecMode.Wellformed(encoded(t, [][][][][][][]int{{{{{{{1}}}}}}})))
	err := &Error{Code: 40, Message: strings.Repeat("m", 1<<20), Data: own}
	for range 10 {
		err = table.EncodeWith(os.ErrClosed, ErrorDetails{Cause: err})
		var list TasksListed
		require.NoError(t, Unmarshal(encoded(t, TasksListed{Tasks: []TaskInfo{{Error: err}}}), &list))
	}
	causes := 0
	for cause := err.Details().Cause; cause != nil; cause = cause.Details().Cause {
		causes++
	}
	require.Equal(t, MaxErrorCauses, causes)
}

func TestTextIsCut(t *testing.T) {
	t.Parallel()
	require.Equal(t, "short", CutText("short", 64))
	require.Equal(t, `a\xff\xfeb`, CutText("a\xff\xfeb", 64))
	for n := range 8 {
		text := strings.Repeat("x", n) + strings.Repeat("€", 100)
		cut := CutText(text, 64)
		require.LessOrEqual(t, len(cut), 64)
		require.True(t, utf8.ValidString(cut))
		kept, left, _ := strings.Cut(cut, "…")
		require.Equal(t, fmt.Sprintf(" (%d bytes left out)", len(text)-len(kept)), left)
		require.True(t, strings.HasPrefix(text, kept))
	}
	for max := 8; max < 64; max++ { // too few bytes for the note about omitted ones
		cut := CutText("a\xff"+strings.Repeat("€", 100), max)
		require.LessOrEqual(t, len(cut), max)
		require.Greater(t, len(cut), max-6)
		require.True(t, utf8.ValidString(cut))
		require.True(t, strings.HasPrefix(cut, `a\xff`))
		require.True(t, strings.HasSuffix(cut, "…"))
	}
}
