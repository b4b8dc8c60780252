// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/rand"
	"encoding/hex"
	"os"
)

// Files that the tests of go-proxmox let Proxmox download.
var (
	tinycoreURL     = os.Getenv("DOWNLOADS") + "/tinycore.iso"
	ubuntuURL       = os.Getenv("DOWNLOADS") + "/endless.iso"
	alpineAppliance = os.Getenv("DOWNLOADS") + "/alpine.tar.xz"
)

// nameGenerator returns a random name.
func nameGenerator(length int) string {
	random := make([]byte, length)
	_, _ = rand.Read(random) // never fails
	return hex.EncodeToString(random)[:length]
}

// createTestISO writes a file.
func createTestISO(path string) error { return os.WriteFile(path, []byte("not really an ISO"), 0o600) }
