package natslink

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// readPieces reads an object with batched requests. The library reads with a consumer, which clients with scopes may not
// create, and which waits for pieces that another client has removed.
func (o *Objects) readPieces(ctx context.Context, name string, read func(*jetstream.ObjectInfo, io.Reader) error) error {
	try, cancel := context.WithTimeout(ctx, openTimeout)
	info, err := o.GetInfo(try, name)
	cancel()
	if err != nil {
		return err
	}
	digest := sha256.New()
	body := &pieces{ctx: ctx, objects: o, subject: o.PieceSubject(info.NUID), next: 1, left: int64(info.Size)}
	if err := read(info, io.TeeReader(body, digest)); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	if body.left > 0 || len(body.data) > 0 {
		return fmt.Errorf("%d bytes of the object were not read", body.left+int64(len(body.data)))
	}
	_, text, _ := strings.Cut(info.Digest, "=")
	if base64.URLEncoding.EncodeToString(digest.Sum(nil)) != text {
		return jetstream.ErrDigestMismatch
	}
	return nil
}

// pieces reads the pieces of an object in order.
type pieces struct {
	ctx     context.Context
	objects *Objects
	subject string
	next    uint64 // sequence number from which the next batch starts
	left    int64  // bytes that no batch has returned yet
	batch   []*nats.Msg
	data    []byte // rest of the current piece
}

// Read implements io.Reader.
func (p *pieces) Read(into []byte) (int, error) {
	for len(p.data) == 0 {
		if len(p.batch) == 0 {
			if p.left <= 0 {
				return 0, io.EOF
			}
			if err := p.fetch(); err != nil {
				return 0, err
			}
		}
		p.data, p.batch = p.batch[0].Data, p.batch[1:]
	}
	n := copy(into, p.data)
	p.data = p.data[n:]
	return n, nil
}

// fetch requests the next batch.
func (p *pieces) fetch() (err error) {
	try, cancel := context.WithTimeout(p.ctx, readStall)
	defer cancel()
	if p.batch, _, err = p.objects.batches.Read(try, p.subject, p.next); err != nil {
		return err
	}
	if len(p.batch) == 0 { // a replica may lack the newest pieces
		return fmt.Errorf("%d bytes of the object are missing: %w", p.left, nats.ErrTimeout)
	}
	for _, msg := range p.batch {
		sequence, err := Sequence(msg)
		if err != nil {
			return err
		}
		p.next = sequence + 1
		p.left -= int64(len(msg.Data))
	}
	if p.left < 0 {
		return errors.New("the object is longer than its description")
	}
	return nil
}
