package jsonrpc

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// allowance is the number of bytes left for the answers to one HTTP request. All requests of a batch share it.
type allowance struct {
	charge *admission.Charge // of the HTTP request, until its answer is sent
	left   atomic.Int64
	last   sync.Mutex // held while a response takes its last part, or gives all its parts back
}

// take subtracts n bytes. It returns false, and subtracts nothing, if fewer are left.
func (a *allowance) take(n int64) bool {
	for {
		left := a.left.Load()
		if n > left {
			return false
		}
		if a.left.CompareAndSwap(left, left-n) {
			return true
		}
	}
}

// give returns n bytes of a response that is not sent.
func (a *allowance) give(n int64) { a.left.Add(n) }

// inlineBytes is the size up to which a tensor is encoded immediately. Larger tensors are encoded during sending.
const inlineBytes = 4 << 10

// indexDigits is the length of the number after a mark.
const indexDigits = 8

// reply is the response to one request. A mark in its text stands for the base64 of a tensor, which is read from the
// tensor's memory during sending. This avoids a copy of each tensor in responses that wait for slow readers.
type reply struct {
	allowance *allowance
	taken     int64 // bytes of the allowance for tensors
	text      []byte
	mark      string // random, so that no other part of a response contains it
	tensors   []*tensor.Tensor
}

type replyKey struct{}

// chargeFrom returns the charge of the HTTP request for the method that runs with ctx.
func chargeFrom(ctx context.Context) *admission.Charge { return replyFrom(ctx).allowance.charge }

// withReply returns a context for a method whose response is r.
func withReply(ctx context.Context, r *reply) context.Context {
	return context.WithValue(ctx, replyKey{}, r)
}

// replyFrom returns the response for the method that runs with ctx.
func replyFrom(ctx context.Context) *reply {
	r, _ := ctx.Value(replyKey{}).(*reply)
	return r
}

// data returns the text that represents the base64 of t in the response. It borrows t.
func (r *reply) data(t *tensor.Tensor) (string, error) {
	if !r.allowance.take(t.Bytes()) {
		return "", fmt.Errorf("%w: the tensors of the result are over the limit of a request: use \"tensors\": \"url\"", models.ErrTooLarge)
	}
	r.taken += t.Bytes()
	if t.Bytes() <= inlineBytes {
		var text bytes.Buffer
		err := writeBase64(&text, t)
		return text.String(), err
	}
	if r.mark == "" {
		r.mark = rand.Text()
	}
	r.tensors = append(r.tensors, t.Alias())
	return fmt.Sprintf("%s%0*x", r.mark, indexDigits, len(r.tensors)-1), nil
}

// writeTo sends the response. If it fails, the response is incomplete.
func (r *reply) writeTo(w io.Writer) error {
	text := r.text
	for len(r.tensors) > 0 {
		at := bytes.Index(text, []byte(r.mark))
		if at < 0 {
			break
		}
		if _, err := w.Write(text[:at]); err != nil {
			return err
		}
		text = text[at+len(r.mark):]
		i, err := strconv.ParseUint(string(text[:indexDigits]), 16, 32)
		if err != nil || i >= uint64(len(r.tensors)) {
			return fmt.Errorf("%w: a mark without a tensor", models.ErrSerialization)
		}
		if err := writeBase64(w, r.tensors[i]); err != nil {
			return err
		}
		text = text[indexDigits:]
	}
	_, err := w.Write(text)
	return err
}

// fits takes the allowance for the text of the response. If too little is left, it closes the response and returns false.
// The lock ensures that the allowance of a closed response is available to the next one.
func (r *reply) fits() bool {
	r.allowance.last.Lock()
	defer r.allowance.last.Unlock()
	if r.allowance.take(int64(len(r.text))) {
		return true
	}
	_ = r.close() // best effort: the caller receives the error
	return false
}

// close releases the tensors and their part of the allowance, which concurrent responses of the batch can then use.
func (r *reply) close() error {
	var errs []error
	if r.taken > 0 {
		r.allowance.give(r.taken)
		r.taken = 0
	}
	for _, t := range r.tensors {
		errs = append(errs, t.Close())
	}
	r.tensors = nil
	return errors.Join(errs...)
}

// writeBase64 writes the elements of t as base64.
func writeBase64(w io.Writer, t *tensor.Tensor) error {
	buffered := bufio.NewWriterSize(w, int(min(64<<10, base64.StdEncoding.EncodedLen(int(t.Bytes()))+1)))
	encoder := base64.NewEncoder(base64.StdEncoding, buffered)
	if _, err := t.WriteTo(encoder); err != nil {
		return err
	}
	if err := encoder.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// succeed sets the result.
func (r *reply) succeed(id string, result any) error {
	var b bytes.Buffer
	b.WriteString(`{"jsonrpc":"2.0","id":` + id + `,"result":`)
	if raw, ok := result.(json.RawMessage); ok {
		b.Write(raw)
	} else {
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(result); err != nil {
			return fmt.Errorf("%w: %w", models.ErrSerialization, err)
		}
		b.Truncate(b.Len() - 1) // the newline
	}
	b.WriteByte('}')
	if err := r.allowance.charge.Add(int64(b.Cap())); err != nil {
		return err
	}
	r.text = b.Bytes()
	return nil
}

// fail replaces the response with an error and releases its tensors.
func (r *reply) fail(id string, bad *Error) {
	_ = r.close() // best effort: the caller receives the error
	text, err := json.Marshal(bad)
	if err != nil {
		text = []byte(`{"code":-32603,"message":"internal error"}`)
	}
	r.text = []byte(`{"jsonrpc":"2.0","id":` + id + `,"error":` + string(text) + `}`)
}
