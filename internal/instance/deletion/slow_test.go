// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Proxmox takes longer for each call than one Delete may take. No call that changes
// something is cut, so no result is lost.
func TestDeleteSlowCalls(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.Hosts[0].Cores, s.Hosts[0].Memory = 64, 256*pvesim.GiB
	}))
	const limit = 500 * time.Millisecond
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = limit }))
	var claims []*karpv1.NodeClaim
	for n := range 10 {
		claims = append(claims, p.Launched(fmt.Sprintf("pool-%d", n), w.NodeClass))
	}
	slow := pvesim.Duration(testenv.Speed * 2 * limit)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		w.AddFault(pvesim.Fault{Method: method, Path: "/nodes/*/qemu/*", Delay: slow})
		w.AddFault(pvesim.Fault{Method: method, Path: "/nodes/*/qemu/*/status/*", Delay: slow})
	}
	w.Sim.ResetRequests()
	var deletes sync.WaitGroup
	for _, claim := range claims {
		deletes.Go(func() { p.Delete(claim) })
	}
	deletes.Wait()
	w.ExpectNoOrphans()
	destroys := 0
	for _, r := range w.Sim.Requests() {
		if r.Method == http.MethodGet {
			continue
		}
		w.Expect(r.Status).NotTo(BeZero(), "%s %s was cut after %s", r.Method, r.Path, r.Took)
		if r.Template == "/nodes/{node}/qemu/{vmid}" {
			destroys++
		}
	}
	w.Expect(destroys).To(Equal(len(claims)), "one request destroys each VM")
}
