// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// condition returns a condition as "Status Reason: message"; empty if there is none.
func condition(object status.Object, kind string) string {
	c := object.StatusConditions().Get(kind)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

// failPolls polls as often as makes the Clusters count as unavailable.
func failPolls(w *testenv.Env) {
	w.T.Helper()
	for range 2 {
		w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
	}
}
