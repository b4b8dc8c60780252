// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package template builds and maintains the Proxmox Templates of ProxmoxTemplates: one
// per Host, or one per shared storage.
//
// Pure functions compute where Templates are required (Locations), which exist
// (ListOwned) and which Template each Host clones from (SelectPerHost). The Provider
// reconciles one Host at a time. Each run starts from the state that it reads, so it
// can stop at any call and be resumed by any process. Nothing is changed or destroyed
// before its ownership mark is read back and matched.
package template
