package codec

import (
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// CheckForwarded validates a payload that is forwarded to another process, which would refuse an invalid one: the
// encoding, and each tensor and state dict against the storages. It borrows the storages and trusts nothing in the
// payload.
func CheckForwarded(value message.RawMessage, storages []*tensor.Storage) error {
	var all any // finds duplicate keys and invalid text at any depth
	if err := message.UnmarshalPayload(value, &all); err != nil {
		return err
	}
	d := &decoder{storages: storages}
	defer func() { CloseAll(d.made) }()
	return message.EachRef(value, func(tag uint64, item message.RawMessage) error {
		if tag == message.TagTensor {
			_, err := d.decodeTensor(item)
			return err
		}
		_, err := d.decodeStateDict(item)
		return err
	})
}
