// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"os"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }
