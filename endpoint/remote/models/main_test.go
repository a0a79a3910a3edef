package models_test

import (
	"testing"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
)

func TestMain(m *testing.M) {
	remotetest.Main(m, func() []gateway.Component { return []gateway.Component{&models.Component{}} })
}
