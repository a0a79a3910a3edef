package stream

import (
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"
)

// chunkBytes is the size of a chunk, as in kpu.torch.Service. Larger chunks are not faster.
const chunkBytes = 1 << 20

// castagnoli is the table of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// dataField is the number of the field with the data in chunks of TensorStream, torchField in chunks of
// kpu.torch.Service.
const (
	dataField  protowire.Number = 1
	torchField protowire.Number = 3
)
