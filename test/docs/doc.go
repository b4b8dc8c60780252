// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs tests the documents: an API server accepts the manifests, the chart accepts the
// values, the product's code accepts the configuration files, commands parse and name things
// that exist, and links work. A code block declares its kind in its first line:
//
//	```yaml                 manifests (each with apiVersion and kind)
//	```yaml values          values of the chart
//	```yaml cloud-config    the Proxmox clusters and their credentials
//	```yaml scenario        a cluster for the simulator
//	```yaml part            part of a manifest: it parses
//	```json instance-types  a file for --instance-types-file
//	```json node-settings   a file for --node-setting-file
//	```shell                commands
//	```text, ```console     terminal output
package docs
