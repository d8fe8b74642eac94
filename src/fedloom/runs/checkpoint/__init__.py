"""What does a run need to go on as if it had never stopped?"""
