package codec

import (
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// CheckPassedOn holds a payload that goes on to another process to what that would refuse: its encoding, and each
// tensor and state dict against the storages, which it borrows. Nothing in it is trusted.
func CheckPassedOn(value message.RawMessage, storages []*tensor.Storage) error {
	var all any // for duplicate keys and broken text, wherever they stand
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
