// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart tests the helm chart: that every value has its effect, that bad values are refused in words, and that what
// it renders is what a real API server takes. The tests run the helm binary named by HELM, as "make unit" does.
package chart
