// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// TestLateUpload delays an upload whose response was lost. The controller uploads the boot
// drive again and deletes it after use. When the first upload ends after that, its boot drive
// must be deleted too.
func TestLateUpload(t *testing.T) {
	t.Parallel()
	c := newCase(t, lab.Installations()[0], lab.StepLaunch, longRetries)
	c.env.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/storage/{storage}/upload", Count: 1, DropAfter: true})
	c.env.AddFault(pvesim.Fault{Task: "imgcopy", Count: 1, Delay: pvesim.Duration(3 * time.Minute)})
	c.process.Run()
	c.env.MustConverge(c.process, "after the launch")
	c.env.Clock.Sleep(4 * time.Minute)
	c.env.MustConverge(c.process, "after the late upload")
	if len(c.env.Claims()) == 0 {
		t.Error("the claim was deleted")
	}
}
