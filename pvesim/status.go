// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import "net/http"

// statusRoutes serves the page that shows hosts, VMs, tasks and faults.
func (s *Simulator) statusRoutes(*http.ServeMux) {}
