from anygpu.cli import main

main()
