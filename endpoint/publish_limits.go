package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/models"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// PublishLimits bound what clients may have published. A version counts from its publication until its memory is freed,
// so one that was superseded or withdrawn counts as long as somebody reads it. What the owner publishes itself does not
// count.
type PublishLimits struct {
	// Versions is how many there may be, whatever their names.
	Versions int
	// Storages is how many storages they may have together. Each costs the owner a descriptor and a mapping.
	Storages int
	// Bytes is how much memory they may have together, by the sizes of their files: what is sparse counts as a whole.
	Bytes int64
	// ManifestBytes is what the names and the places of their tensors may cost the owner, by [ManifestCost].
	ManifestBytes int64
}

// ManifestCost is what an owner is charged for the manifest of a publication: at least the memory that its columns,
// texts and tensors take there.
func ManifestCost(m *message.Manifest) int64 { return models.ManifestCost(m) }
