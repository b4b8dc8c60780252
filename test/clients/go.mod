// Runs Proxmox clients of other projects against the simulator. It is a separate module because the product does not
// need their dependencies.
module github.com/karpenter-proxmox/karpenter-provider-proxmox/test/clients

go 1.26.0

toolchain go1.26.10

tool github.com/Telmate/proxmox-api-go

require github.com/luthermonson/go-proxmox v0.7.1

require (
	github.com/Telmate/proxmox-api-go v0.0.0-20260201220834-d1b91f64e60f // indirect
	github.com/buger/goterm v1.0.4 // indirect
	github.com/diskfs/go-diskfs v1.9.3 // indirect
	github.com/djherbis/times v1.6.0 // indirect
	github.com/gorilla/websocket v1.4.2 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jinzhu/copier v0.3.4 // indirect
	github.com/joho/godotenv v1.5.1 // indirect
	github.com/magefile/mage v1.14.0 // indirect
	github.com/spf13/cobra v1.9.1 // indirect
	github.com/spf13/pflag v1.0.6 // indirect
	golang.org/x/crypto v0.39.0 // indirect
	golang.org/x/sys v0.43.0 // indirect
)
