// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"net/http"
	"time"
)

// LoadFaults returns the rules of the profile "load": what overloaded hosts of a running Proxmox VE 8.4 and 9.2 did now
// and then. A client must work with all of it. Which calls are hit depends on Options.Seed.
func LoadFaults() []Fault {
	const vm = "/nodes/{node}/qemu/{vmid}"
	const upload = "/nodes/{node}/storage/{storage}/upload"
	noWorker := func(method, path string) Fault {
		return Fault{
			Method: method, Path: path, Probability: 0.1,
			Status: http.StatusInternalServerError, Message: "got no worker upid - start worker failed",
		}
	}
	return []Fault{
		// Nothing was started, the VM is unchanged.
		noWorker(http.MethodDelete, vm), noWorker(http.MethodPost, vm+"/status/stop"), noWorker(http.MethodPost, vm+"/status/start"),
		noWorker(http.MethodPost, vm+"/clone"),
		// An upload that stalls for five seconds gets no response. If that happens after its last byte, the task fails.
		{Method: http.MethodPost, Path: upload, Probability: 0.1, Delay: Duration(uploadStall), DropBefore: true},
		{Method: http.MethodPost, Path: upload, Probability: 0.1, CutUpload: true},
		// The volume is deleted.
		{Task: "imgdel", Probability: 0.2, FailAfter: "unable to open file - No such file or directory"},
		// The proxy stops waiting after 30 seconds; the daemon may have got the call or not. This comes in series.
		{Probability: 0.01, InARow: 3, Delay: Duration(30 * time.Second), Status: 596},
		{Probability: 0.01, InARow: 2, Delay: Duration(30 * time.Second), Status: 596, AfterCall: true},
		{Probability: 0.01, InARow: 3, DropBefore: true},
		{Probability: 0.01, InARow: 2, DropAfter: true},
		// Everything else takes longer. The config of a clone does not exist before its task has started.
		{Task: "*", Probability: 0.5, Jitter: Duration(2 * time.Second)},
		{Probability: 0.3, Jitter: Duration(time.Second)},
	}
}

// uploadStall is how long an upload may stall before Proxmox closes its connection.
const uploadStall = 5 * time.Second
