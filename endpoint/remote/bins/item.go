package bins

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// Value is what a caller stores as one item.
type Value struct {
	// Type is the media type of Body, for instance "application/json" or [TypeSafetensors]. At most 256 bytes.
	Type string
	// Meta is what readers can know without the body. Keys and values together have at most 4 KiB.
	Meta map[string]string
	// Body is borrowed until the call that stores it returns.
	Body []byte
}

// Item is one stored value. The reader owns it.
type Item struct {
	Value
	// Sequence orders all items of a namespace and is never used twice.
	Sequence uint64
	// Time is when the server stored the item.
	Time time.Time
	// Put reports that the item replaced all before it; otherwise it was appended.
	Put bool
}

// Operations, as their messages name them.
const (
	opPut    = "put"
	opAppend = "append"
	opTake   = "take"
	opDelete = "delete"
	// opTakeSome takes the items up to headerUpTo, headerItems in number, which are gone as soon as it is stored.
	opTakeSome = "take-some"
)

// Headers of messages.
const (
	headerOp     = "Bin-Op"
	headerType   = "Bin-Type"
	headerMeta   = "Bin-Meta"
	headerSize   = "Bin-Size"
	headerDigest = "Bin-Sha256"
	headerObject = "Bin-Object"
	headerList   = "Bin-List" // "1": the body is a JSON array whose elements are the items
	headerUpTo   = "Bin-Up-To"
	headerItems  = "Bin-Items"
)

const (
	maxTypeBytes   = 256
	maxMetaBytes   = 4 << 10
	maxHeaderBytes = 16 << 10 // all headers of a message, NATS's own too
)

func (v Value) check(o Options) error {
	if int64(len(v.Body)) > o.MaxItemBytes {
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrTooLarge, len(v.Body), o.MaxItemBytes)
	}
	if len(v.Type) > maxTypeBytes {
		return fmt.Errorf("%w: its type has %d bytes, at most %d are allowed", ErrTooLarge, len(v.Type), maxTypeBytes)
	}
	total := 0
	for key, value := range v.Meta {
		total += len(key) + len(value)
	}
	if total > maxMetaBytes {
		return fmt.Errorf("%w: its metadata has %d bytes, at most %d are allowed", ErrTooLarge, total, maxMetaBytes)
	}
	return nil
}

// message makes the message of a value without its body.
func (v Value) message(subject, op string) (*nats.Msg, error) {
	msg := nats.NewMsg(subject)
	msg.Header.Set(headerOp, op)
	msg.Header.Set(headerSize, strconv.Itoa(len(v.Body)))
	if v.Type != "" {
		msg.Header.Set(headerType, strconv.QuoteToASCII(v.Type))
	}
	if len(v.Meta) > 0 {
		text, err := json.Marshal(v.Meta)
		if err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
		msg.Header.Set(headerMeta, strconv.QuoteToASCII(string(text)))
	}
	return msg, nil
}

// stored is a message of a bin as it lies in the stream, its body perhaps elsewhere.
type stored struct {
	item   Item
	op     string
	size   int64
	object string // name in the object store; "" where the body is inline
	digest [sha256.Size]byte
	list   bool   // the elements of the body are the items
	upTo   uint64 // of opTakeSome: the newest item that is gone
}

// empty reports that the message ends a bin.
func (m stored) empty() bool { return m.op == opTake || m.op == opDelete }

// parseStored checks what a message says of itself. The body of an item that lies inline is not copied.
func parseStored(header nats.Header, body []byte, sequence uint64, at time.Time, limit int64) (m stored, err error) {
	m.op = header.Get(headerOp)
	m.item = Item{Sequence: sequence, Time: at, Put: m.op == opPut}
	switch m.op {
	case opTake, opDelete:
		return m, nil
	case opTakeSome:
		if m.upTo, err = strconv.ParseUint(header.Get(headerUpTo), 10, 64); err != nil || m.upTo >= sequence {
			return m, fmt.Errorf("%w: what message %d has taken", ErrCorrupt, sequence)
		}
		return m, nil
	case opPut, opAppend:
	default:
		return m, fmt.Errorf("%w: message %d is no item", ErrCorrupt, sequence)
	}
	m.list = header.Get(headerList) == "1"
	if text := header.Get(headerType); text != "" {
		if m.item.Type, err = strconv.Unquote(text); err != nil {
			return m, fmt.Errorf("%w: type of item %d", ErrCorrupt, sequence)
		}
	}
	if text := header.Get(headerMeta); text != "" {
		if text, err = strconv.Unquote(text); err == nil {
			err = json.Unmarshal([]byte(text), &m.item.Meta)
		}
		if err != nil {
			return m, fmt.Errorf("%w: metadata of item %d", ErrCorrupt, sequence)
		}
	}
	if m.size, err = strconv.ParseInt(header.Get(headerSize), 10, 64); err != nil || m.size < 0 || m.size > limit {
		return m, fmt.Errorf("%w: size of item %d", ErrCorrupt, sequence)
	}
	if m.object = header.Get(headerObject); m.object == "" {
		m.item.Body = body
		return m, nil
	}
	sum, err := hex.DecodeString(header.Get(headerDigest))
	if err != nil || copy(m.digest[:], sum) != sha256.Size {
		return m, fmt.Errorf("%w: digest of item %d", ErrCorrupt, sequence)
	}
	return m, nil
}

// appendElements adds the elements of an item that is a list, each as an item of its own.
func appendElements(items []Item, list Item) ([]Item, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(list.Body, &elements); err != nil {
		return nil, fmt.Errorf("%w: item %d is no list: %w", ErrCorrupt, list.Sequence, err)
	}
	for _, element := range elements {
		one := list
		one.Body = element
		items = append(items, one)
	}
	return items, nil
}
