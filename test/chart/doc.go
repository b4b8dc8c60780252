// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart tests the Helm chart: every value has its effect, invalid values are rejected
// with a message, and an API server accepts what the chart renders. The tests run the helm
// binary named by HELM, as "make unit" does.
package chart
