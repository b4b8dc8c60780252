// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// An upload whose answer was lost is made again. When the first one ends after the
// second was used and taken back, its boot drive lies there for nobody.
func TestAnUploadThatEndsTooLateIsCollected(t *testing.T) {
	t.Parallel()
	c := newCase(t, lab.Installations()[0], lab.ActLaunch, patient)
	c.strike(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/storage/{storage}/upload", Count: 1, DropAfter: true})
	c.strike(pvesim.Fault{Task: "imgcopy", Count: 1, Delay: pvesim.Duration(3 * time.Minute)})
	c.process.Run()
	c.converge("after the launch")
	c.world.Clock.Sleep(4 * time.Minute)
	c.converge("after the late upload")
	if len(c.world.Claims()) == 0 {
		t.Error("the claim was given up")
	}
}
