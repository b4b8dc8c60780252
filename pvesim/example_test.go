// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A test starts a cluster, injects a fault, and counts the calls.
func Example() {
	sim, err := pvesim.New(pvesim.DefaultScenario(3), pvesim.Options{Speed: 50})
	if err != nil {
		panic(err)
	}
	if err := sim.Start(context.Background()); err != nil {
		panic(err)
	}
	defer sim.Close()
	if _, err := sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu/*/clone", Count: 1, Status: 596}); err != nil {
		panic(err)
	}
	clone := func() string {
		req, err := http.NewRequest(http.MethodPost, sim.URL()+"/nodes/pve2/qemu/9001/clone", strings.NewReader("newid=300&name=worker"))
		if err != nil {
			panic(err)
		}
		req.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultTokenID+"="+pvesim.DefaultTokenSecret)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := httpClient(sim).Do(req)
		if err != nil {
			panic(err)
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.Status
	}
	fmt.Println(clone())
	fmt.Println(clone())
	fmt.Println(sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone"), "calls")
	// Output:
	// 596 Connection timed out
	// 200 OK
	// 2 calls
}
