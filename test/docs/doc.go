// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs tests what the documents say: manifests are taken by a real API server, values by the chart, configuration
// files by the code that reads them; commands parse and name things that exist; links lead somewhere. A code block says in
// its first line what it is:
//
//	```yaml                 manifests (each with apiVersion and kind)
//	```yaml values          values of the chart
//	```yaml cloud-config    the Proxmox clusters and their credentials
//	```yaml scenario        a cluster for the simulator
//	```yaml part            part of a manifest: it parses
//	```json instance-types  a file for --instance-types-file
//	```json node-settings   a file for --node-setting-file
//	```shell                commands
//	```text, ```console     what a screen shows
package docs
